"""Several processes working together: the mesh that they form, their messages, and their failures."""
