"""Object stores: how one is opened, and how a write is sure of its outcome, whatever the answer.

`mirrorlake.storage` stands on it; nothing else of the package needs to know what a store is.
"""
