"""The job `dispatch`: messages meet the filters of persistent sessions."""
