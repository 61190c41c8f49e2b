local LEVELS = {['9'] = HIGH, ['5'] = NORMAL, ['1'] = LOW}
