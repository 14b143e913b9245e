"""Run the command `nearfar` as `python -m nearfar`."""

from nearfar.cli import main

if __name__ == "__main__":
    main()
