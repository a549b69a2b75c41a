"""What a call does, as acts: read once from the raw arguments, and all that rules, corrections and the model work
on."""
