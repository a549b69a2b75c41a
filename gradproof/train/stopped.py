"""Why a run ends before its last step."""


class Stopped(Exception):
    """A run that cannot go on; the sentence names its last good checkpoint."""


class Diverged(Stopped):
    """The loss, a gradient or the outputs are no numbers any more."""
