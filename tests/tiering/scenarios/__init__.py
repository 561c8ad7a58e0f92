"""The scenarios of KIP-405: its tables of brokers, remote segments and epochs, row by row.

    table      two brokers and a tier, set up as a table says; what a consumer is answered

Brokers are real over memory disks, with a real remote log manager each; time is virtual, and passes
of the tier are made by hand. The consumer is the core of our own, with real answers.
"""
