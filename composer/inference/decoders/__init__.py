"""Ways of searching for an answer, one file each. Their settings are in `inference.methods`."""
