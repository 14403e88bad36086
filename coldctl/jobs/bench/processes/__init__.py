"""Processes of their own for loads: started, told, watched, and ended with the job."""
