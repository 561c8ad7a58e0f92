"""The command line: `tidemark`.

A module has the commands of one group, or one command; the docstring of a command is its help text.
`main` puts them together. No room imports from here. Scripts and tests import `local_cluster`, a
cluster of real processes.

    main              the groups, errors, exit status
    session, output   options that commands share; JSON or tables
    local_cluster     the processes of `tidemark dev`
    reassignment      plans of replica moves; pure
    dump_decoders     texts of the keys and values of internal topics

Every command prints text for people, or tab-separated lines in a pipe, or JSON with `--json`. Its
exit status is not 0 if it failed. `tidemark --help` loads neither gRPC nor Arrow: a command imports
when it is called. Commands that run a node, or read its files, import the server rooms then, and
need the extra `server`.
"""
