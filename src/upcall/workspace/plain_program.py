"""Find the program that a shell command runs, for approvals that cover one program.

It fails closed: only programs and options that are listed here are covered. With these, a program reads and prints.
It starts no other program because of its arguments, and it writes no file that its arguments name. Everything else
is approved call by call.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PLAIN = re.compile(r"[A-Za-z0-9 _./,:=+@%-]+")
"""Characters without a meaning for the shell. Unicode look-alikes of them are not included."""

_SYSTEM = ("", "/bin/", "/usr/bin/")
"""Where a program may be: wherever PATH says, or in a folder that agents don't write. `./ls` may be anything."""

_ANY_OPTION = """
    b2sum basename cat cksum cmp comm cut df dirname du echo expand false fmt fold groups head id join ls md5sum nl
    nproc od paste printenv printf pwd readlink realpath rev seq sha1sum sha224sum sha256sum sha384sum sha512sum
    sleep stat sum tac tail test tr true uname unexpand wc which whoami
"""
"""Programs that no option makes write a file or start a program, on any system. (`arch` does, on macOS.)"""


class _Options(NamedTuple):
    """The options of a program that are covered.

    flags: letters that take no value; valued: letters whose value may follow at once; long: names, written in full
    numbers: whether a number is an option, such as `-20`
    begins: with words that are not options, the arguments must begin with one of these; None for any
    """

    flags: str = ""
    valued: str = ""
    long: str = ""
    numbers: bool = False
    begins: str | None = None

    def cover(self, words: list[str]) -> bool:
        """Return whether all of these arguments are covered."""
        options = [word for word in words if word.startswith("-") and word not in ("-", "--")]
        if self.begins is not None and len(options) < len(words) and words[0] not in self.begins.split():
            return False
        return all(map(self._covers, options))

    def _covers(self, option: str) -> bool:
        if self.numbers and option[1:].isdecimal():
            return True
        if option.startswith("--"):
            return option[2:].partition("=")[0] in self.long.split()
        letters = option[1:].lstrip(self.flags)
        return not letters or letters[0] in self.valued


_OPTIONS = {
    "grep": _Options(
        "abcEFGHhiLlnoPqRrsTUvwxyZz", "ABCefm",
        """
        after-context basic-regexp before-context byte-offset color colour context count exclude exclude-dir
        extended-regexp file files-with-matches files-without-match fixed-strings ignore-case include invert-match
        line-number line-regexp max-count no-filename no-messages null only-matching perl-regexp quiet recursive
        regexp silent text version with-filename word-regexp
        """,
        numbers=True,
    ),
    "diff": _Options(
        "abBcdeEiNnpqrstTuwyZ", "CFIUWxX",
        """
        brief color context exclude ignore-all-space ignore-blank-lines ignore-case ignore-space-change new-file
        no-dereference recursive report-identical-files side-by-side text unified version width
        """,
        numbers=True,
    ),
    "sort": _Options(
        "bcCdfghiMmnRrsuVz", "kt",
        """
        check dictionary-order field-separator general-numeric-sort human-numeric-sort ignore-case
        ignore-leading-blanks key month-sort numeric-sort reverse stable unique version version-sort
        """,
    ),
}  # fmt: skip

_DIFF = """
    abbrev binary cached check color color-words compact-summary cumulative diff-algorithm diff-filter dirstat
    exit-code find-copies find-copies-harder find-renames full-index function-context histogram ignore-all-space
    ignore-blank-lines ignore-space-at-eol ignore-space-change inter-hunk-context irreversible-delete merge-base
    minimal name-only name-status no-color no-ext-diff no-patch no-prefix no-relative no-renames no-textconv numstat
    patch patch-with-stat patience pickaxe-all pickaxe-regex quiet raw relative shortstat staged stat summary text
    unified word-diff word-diff-regex
"""
_COMMITS = """
    abbrev-commit after all all-match ancestry-path author author-date-order basic-regexp before boundary branches
    cherry cherry-mark cherry-pick children committer count date date-order decorate decorate-refs exclude
    extended-regexp first-parent fixed-strings follow format full-history graph grep grep-reflog invert-grep
    left-only left-right max-count max-parents merges min-parents no-abbrev-commit no-decorate no-merges no-notes
    no-walk oneline parents perl-regexp pretty regexp-ignore-case relative-date remotes reverse right-only since
    simplify-by-decoration skip source tags topo-order until walk-reflogs
"""
_LOG = _Options("abBcDEFgiPmpqRrstuwWz", "CGLMnSU", _DIFF + _COMMITS, numbers=True)
_REFS = "all color column contains count format ignore-case list merged no-color no-column no-contains no-merged"
_BLAME = _Options(
    "bcefklnpstw", "CLM",
    "abbrev color-by-age color-lines date encoding incremental line-porcelain porcelain root score-debug "
    "show-email show-name show-number show-stats since",
)  # fmt: skip

_GIT = {
    "annotate": _BLAME,
    "blame": _BLAME,
    "branch": _Options("arv", "", f"{_REFS} abbrev no-abbrev points-at remotes show-current sort verbose",
                       begins="--list"),
    "cat-file": _Options("epst"),
    "count-objects": _Options("vH", "", "human-readable verbose", begins=""),
    "describe": _Options("", "", "all abbrev always candidates contains dirty exact-match exclude first-parent "
                         "long match tags"),
    "diff": _LOG,
    "for-each-ref": _Options("", "", f"{_REFS} points-at sort"),
    "log": _LOG,
    "ls-files": _Options("cdikmostuvz", "x", "abbrev cached deduplicate deleted directory eol error-unmatch "
                         "exclude exclude-standard full-name ignored killed modified no-empty-directory others "
                         "stage unmerged"),
    "ls-tree": _Options("dlrtz", "", "abbrev format full-name full-tree long name-only name-status object-only"),
    "merge-base": _Options("a", "", "all fork-point independent is-ancestor octopus"),
    "name-rev": _Options("", "", "all always name-only no-undefined refs tags"),
    "reflog": _LOG._replace(begins="show"),
    "remote": _Options("v", "", "verbose", begins=""),
    "rev-list": _LOG,
    "rev-parse": _Options("q", "", "abbrev-ref absolute-git-dir all branches git-common-dir git-dir "
                          "is-bare-repository is-inside-git-dir is-inside-work-tree is-shallow-repository quiet "
                          "remotes short show-cdup show-object-format show-prefix show-toplevel symbolic "
                          "symbolic-full-name tags verify"),
    "shortlog": _Options("cens", "", f"{_COMMITS} email group numbered summary", numbers=True),
    "show": _LOG,
    "show-ref": _Options("dhq", "", "abbrev dereference hash head heads quiet tags verify"),
    "stash": _LOG._replace(begins="list show"),
    "status": _Options("bsvz", "u", "ahead-behind branch column find-renames ignore-submodules ignored long "
                       "no-ahead-behind no-column no-renames porcelain renames short show-stash untracked-files "
                       "verbose"),
    "tag": _Options("l", "n", f"{_REFS} points-at sort", begins="--list -l"),
    "version": _Options("", "", "build-options", begins=""),
}  # fmt: skip
"""The commands of git that read, with their options. The rest is left out with its reason:

Others write where their arguments say (`--output`, `bundle`, `mv`), run a program that their arguments name
(`--upload-pack`, `rebase -x`), read settings from them (`-c`), run hooks or a remote's programs (`commit`, `push`),
or change refs and settings (`branch x`). `--textconv`, `--ext-diff` and `--show-signature` run programs, too.
"""


def plain_program(command: str) -> str | None:
    """Return the program that a command runs, as it is written; None if the command may do more than read."""
    words = [word for word in command.split(" ") if word]
    if not words or not _PLAIN.fullmatch(command):
        return None
    program, *arguments = words
    folder, separator, name = program.rpartition("/")
    if folder + separator not in _SYSTEM:
        return None
    if name == "git":
        return program if _is_plain_git(arguments) else None
    options = _OPTIONS.get(name)
    return program if name in _ANY_OPTION.split() or (options and options.cover(arguments)) else None


def _is_plain_git(arguments: list[str]) -> bool:
    """Return whether git only reads, with the repository's own settings."""
    subcommand, *rest = arguments or [""]
    options = _GIT.get(subcommand)
    if options is None or any("::" in word or "%G" in word for word in rest):  # %G runs gpg
        return False
    if subcommand == "stash" and rest[:1] not in (["list"], ["show"]):  # it stashes the changes away
        return False
    return options.cover(rest)
