"""Published checkpoints as runs: `import`."""
