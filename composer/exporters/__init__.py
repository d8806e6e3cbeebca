"""Export of models to run without this project: by CTranslate2 (`ctranslate2`)."""
