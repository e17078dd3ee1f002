"""Names of files and folders in a lake, spelled out: tests fail if the library changes one."""

from __future__ import annotations

ZONE = "Files/LandingZone"
TABLES = "Tables"
STATE = "Files/_mirrorlake"
PROCESSED = "_ProcessedFiles"
READY_TO_DELETE = "_FilesReadyToDelete"
METADATA = "_metadata.json"
PARTNER_EVENTS = "_partnerEvents.json"
IDENTITY = "_mirrorlake.json"
