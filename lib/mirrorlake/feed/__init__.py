"""Change feeds: read, stream, diagnose and archive them, and keep dimensions."""
