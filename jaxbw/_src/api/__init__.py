"""The public functions: arguments become one operation."""
