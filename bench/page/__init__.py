"""The report: one self-contained HTML page with interactive plots, drawn from result documents.

sections.py collects sections of Vega-Lite charts, tables and texts; run_page.py puts them into one file with
Vega's JavaScript. The open page fetches nothing; its policy allows only its own script and style.
"""

from bench.page.run_page import page, write_page

__all__ = ["page", "write_page"]
