"""An architecture as a picture: what stands in it, where, and how it is written as SVG and as Mermaid."""
