"""What the machine is made of. Nothing here depends on the rest of the package."""
