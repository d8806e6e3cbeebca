"""The blocks of a recipe: one block, one file; the name of the file is the word in the recipe."""
