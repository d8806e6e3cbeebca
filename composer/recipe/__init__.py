"""The recipe language: from text to plain data that hold together.

Only the schema's generator imports torch.
"""
