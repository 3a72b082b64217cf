"""What no paper has."""
