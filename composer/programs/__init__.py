"""Programs of a model, `encode`, `start` and `step`, as ONNX graphs: for exports and decoding."""
