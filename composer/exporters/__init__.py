"""Export of models to run without this project: PyTorch alone (`script`), or CTranslate2 (`ctranslate2`)."""
