"""The report: one self-contained HTML page with interactive plots, drawn from result documents.

page.html, page.css and the modules of JavaScript beside them are put together by assembly.py; nothing is
fetched when the page is open, and its Content-Security-Policy allows its own script and style alone.
"""

from bench.page.assembly import page, write_page

__all__ = ["page", "write_page"]
