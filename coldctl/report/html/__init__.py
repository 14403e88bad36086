"""A bench result as one self-contained HTML page. `page.page` makes it; every other file draws one part of it."""
