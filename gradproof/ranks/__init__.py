"""Several processes at one piece of work: the mesh they form, what they say to each other, and how they fail."""
