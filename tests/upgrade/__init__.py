"""Rolling upgrades from an earlier release, with its own code as the earlier nodes and clients.

`scripts/test-upgrade` builds that release from the project's history, because wheels are heavy in a
repository. The commit is in `previous`; each release moves it to the tag of the one before.
`UPGRADE_FROM` is the directory with the installed packages; without it the tests are skipped.

`worker` is a client of either release: it imports nothing but `tidemark`. `load` starts workers and
judges what they report. `rolling` is the cluster, whose nodes change their release one at a time.
Dependencies are those of the environment that runs the tests, for both releases.
"""
