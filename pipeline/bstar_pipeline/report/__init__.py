"""The report: one self-contained HTML page about one pair, made of the tables.

``asking.collect`` asks the tables (``reading``) for what the page needs and brings it to this process
(``content``). ``page.render`` makes the page of it (``plots``, ``words``), which loads nothing.
"""
