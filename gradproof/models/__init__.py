"""Parameters + forward + backward, composed of ops. `MoE` and `Dense` share one protocol (`model.py`)."""
