"""The landing zone behind the storage protocol that publishers of Open Mirroring speak.

Stands on `landing` and `storage` alone; nothing here starts Spark. The mirror is handed over by
the command.
"""
