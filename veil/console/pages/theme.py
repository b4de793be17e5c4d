"""Light, dark, or as the system says: kept in a cookie, so that a page is drawn right from its first pixel."""

from __future__ import annotations

from veil.console.exchange import Answer, see_other
from veil.console.pages.login import own_place
from veil.console.routes import change
from veil.console.visit import Visit

THEMES = ("system", "light", "dark")


@change("/theme", needs=None)
async def choose_theme(visit: Visit) -> Answer:
    """Remember the visitor's choice for a year."""
    theme = visit.form.text("theme")
    place = own_place(visit.form.text("back"))
    if theme not in THEMES:
        theme = "system"
    cookie = f"veil_theme={theme}; Path=/console; SameSite=Strict; Max-Age=31536000"
    return see_other(place, ("Set-Cookie", cookie))
