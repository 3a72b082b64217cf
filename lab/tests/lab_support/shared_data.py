from pathlib import Path

ROOT = Path(__file__).parents[3]
# Real data beside the repository or in it; tests that need it skip where it is absent.
SHARED = next((p for p in (ROOT / "shared" / "data", ROOT.parent / "shared" / "data") if p.is_dir()), ROOT / "absent")
