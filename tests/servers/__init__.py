"""Real servers for the tests, started by the project's own files.

The order for each: a URL from the environment, a local server binary, testcontainers when
Docker answers, and else a failure that says why. Nothing is skipped silently.
"""
