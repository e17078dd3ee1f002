"""What people look at: explorer, monitor page, the form to publish with; in Lab and as HTML.

Each tab and page is a module. They render what the library returns and decide nothing themselves.
"""
