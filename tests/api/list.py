#!/usr/bin/env python3
"""Prints the public interface of a library from its documentation: list.py FOLDER prints each item with its signature
and its methods. tests/api/check.sh compares the output with the list in the repository."""

import html
import re
import sys
from pathlib import Path

ITEM = re.compile(r"(struct|enum|trait|fn|macro|constant|type|attr|derive)\.(\w+)\.html$")
SIGNATURE = re.compile(r'<pre class="rust (?:item-decl|macro)">(.*?)</pre>|<h4 class="code-header">(.*?)</h4>', re.S)


def text(markup):
    markup = re.sub(r"<summary.*?</summary>", "", markup, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", markup)).split())


def main():
    root = Path(sys.argv[1])
    for page in sorted(root.rglob("*.html")):
        if not ITEM.search(page.name):
            continue
        markup = page.read_text()
        # The page of an item that has moved is only a redirection.
        if "http-equiv=\"refresh\"" in markup:
            continue
        module = "::".join(page.relative_to(root.parent).parent.parts)
        # Only methods before the implementations of traits are the item's own.
        own = re.split(r'id="(?:trait|synthetic|blanket)-implementations"', markup)[0]
        for number, (item, method) in enumerate(SIGNATURE.findall(own)):
            print(f"{module}: {text(item)}" if item else f"    {text(method)}")
            if number == 0 and not item:
                sys.exit(f"{page}: no declaration")


main()
