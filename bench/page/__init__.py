"""The report: one self-contained HTML page with interactive plots, drawn from result documents.

sections.py and tuning.py yield the parts of its sections: Vega-Lite charts, tables and texts. run_page.py
puts them into one file with Vega's JavaScript. The open page fetches nothing, by its own policy.
"""

from bench.page.run_page import page, write_page

__all__ = ["page", "write_page"]
