"""The report: one self-contained HTML page with interactive plots, drawn from result documents.

assembly.py puts page.html, page.css and the JavaScript modules together. The open page fetches nothing, and
its Content-Security-Policy allows only its own script and style.
"""

from bench.page.assembly import page, write_page

__all__ = ["page", "write_page"]
