"""Models with settable inputs."""
