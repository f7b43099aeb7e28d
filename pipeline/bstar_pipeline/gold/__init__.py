"""The answers: functions from the lower tables to those of gold, one module for each question."""
