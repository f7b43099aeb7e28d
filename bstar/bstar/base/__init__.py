"""What every room needs: no protocol, no socket, no clock."""
