"""A URL as it may be shown: in logs, in greetings, in refusals, by `veil config show`."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
# To the last @, not to the first: where somebody forgot to escape one, too much is hidden rather than too little.
_USER_INFO = re.compile(r"^((?:[a-z0-9+.-]*:?//)?[^:@/?#]*):(?!//)(.*)@", re.IGNORECASE | re.DOTALL)
_SECRET_OPTION = re.compile(r"([?&\s](?:ssl)?password\s*=\s*)[^&\s]*", re.IGNORECASE)


def without_password(url: str) -> str:
    """The URL with `***` where a password stands; any other text as it is."""
    return _SECRET_OPTION.sub(rf"\g<1>{HIDDEN}", _USER_INFO.sub(rf"\g<1>:{HIDDEN}@", url))
