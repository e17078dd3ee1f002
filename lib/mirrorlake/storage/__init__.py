"""Files on local disks and object stores: conditional writes, leases, kept documents."""
