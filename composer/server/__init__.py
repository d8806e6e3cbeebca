"""`serve`: trained runs as an HTTP server; `app` and `process` need the extra `serve`."""
