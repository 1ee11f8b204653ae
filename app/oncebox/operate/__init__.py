"""What a person does with the inbox: look, mend, take care."""
