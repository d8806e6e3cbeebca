"""The commands, by what they are about. Each reads its arguments, calls one function, and says what came out."""
