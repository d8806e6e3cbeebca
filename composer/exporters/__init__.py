"""Export of models to run without this project: ONNX programs (`onnx_export`), CTranslate2."""
