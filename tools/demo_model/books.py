"""Books as plain text, the simplest prose first.

    python3 books.py REPOSITORY OUT.txt [--megabytes 90]

REPOSITORY is a clone of github.com/mlschmitt/classic-books-markdown, which calls all of its titles public domain; works
of 1929 or later are left out, and verse and plays. Between two books stands a line with a form feed.
"""

import argparse
import pathlib
import re

SKIPPED = (
    "Shakespeare",
    "Ibsen",
    "Shaw/",
    "Milton",
    "Dante",
    "Dickinson",
    "Whitman",
    "Aristophanes",
    "Analects",
    "Ulysses",
    "Chaucer",
    "Spenser",
)
PLAIN = str.maketrans({"“": '"', "”": '"', "’": "'", "‘": "'"})


def text_of(markdown):
    """The paragraphs, a line each, or nothing if the work is too young or without a year."""
    year = re.search(r"## Year: *(-?\d+)", markdown)
    if not year or int(year.group(1)) >= 1929:
        return None
    text = markdown.split("-------", 1)[-1]
    text = re.sub(r"^#+ .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"[*_\\]", "", text)
    paragraphs = (re.sub(r"\s+", " ", part).strip() for part in re.split(r"\n\s*\n", text))
    return "\n\n".join(part for part in paragraphs if part).translate(PLAIN).replace("--", "—")


def difficulty(text):
    """Long words and long sentences."""
    found = text.split()
    sentences = re.split(r'[.!?]+["\')]*\s', text)
    return 2 * sum(map(len, found)) / max(1, len(found)) + len(found) / max(1, len(sentences)) / 5


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repository", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--megabytes", type=float, default=90)
    arguments = parser.parse_args()
    books = []
    for path in sorted(arguments.repository.rglob("*.md")):
        name = path.relative_to(arguments.repository)
        if len(name.parts) < 2 or any(word in str(name) for word in SKIPPED):
            continue
        if text := text_of(path.read_text(encoding="utf-8", errors="replace")):
            books.append((difficulty(text), text))
    books.sort(key=lambda book: book[0])
    chosen, size = [], 0
    for _, text in books:
        if size + len(text) > arguments.megabytes * 1e6:
            break
        chosen.append(text)
        size += len(text)
    arguments.out.write_text("\n\f\n".join(chosen), encoding="utf-8")
    print(f"{len(chosen)} books, {size / 1e6:.1f} M characters")


if __name__ == "__main__":
    main()
