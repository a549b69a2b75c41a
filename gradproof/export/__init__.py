"""Export: a run's whole decision as one file that needs no Gradproof, checked before it is written."""
