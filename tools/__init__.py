"""What the project needs besides the package and its tests: targets of make run it."""
