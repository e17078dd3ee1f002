"""Local disks and object stores: files, conditional writes, leases, versioned documents, paths."""
