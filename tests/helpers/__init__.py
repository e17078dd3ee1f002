"""What several tests share: models, makers of files and lakes, and readers of what lies on disk."""
